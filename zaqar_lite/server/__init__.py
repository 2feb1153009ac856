"""The parts of a running server around its application.

`zaqar_lite.serve` runs the server and `zaqar_lite.main` builds the application from these modules:

* settings: `loading` reads and checks them, at SIGHUP again;
* connections: `connections` and `http1`, `sockets` and `tls`;
* processes: `workers`, `logs` and `gc_tuning`;
* the application: `services` makes what `app` puts HTTP in front of;
* what a setting chooses: `stores`, `authentication`, `identity_servers`, `policy_file` and
  `transports`.
"""
