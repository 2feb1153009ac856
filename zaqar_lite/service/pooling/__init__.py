"""Several message stores behind one server: pools, flavors, and the catalogue of queues."""
