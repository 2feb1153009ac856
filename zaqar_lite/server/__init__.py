"""The parts of a running server around its application.

`zaqar_lite.serve` runs the server and `zaqar_lite.main` builds the application from these modules:

* settings: `loading` reads and checks them, `reloading` reads them again;
* connections: `connections`, `exchanges`, `sockets` and `tls`;
* processes: `workers`, `systemd`, `logs` and `garbage`;
* what a setting chooses: `stores`, `authentication`, `keystone`, `published`, `policy_file`,
  `transports` and `exporting`.
"""
