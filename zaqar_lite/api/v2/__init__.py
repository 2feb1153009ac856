"""The actions of the v2 API, one module a resource."""
