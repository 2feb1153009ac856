"""What the running server is made of around its application.

`zaqar_lite.serve` runs it and `zaqar_lite.main` puts the application together. They need the
settings as they were given (`loading`, `reloading`), connections and their bounds (`connections`,
`exchanges`, `sockets`, `tls`), processes (`workers`, `systemd`, `logs`), and the parts that a
setting chooses (`stores`, `authentication`, `keystone`, `published`, `policy_file`, `transports`,
`exporting`).
"""
