"""The methods of the sync client, one module per resource, as the endpoints have them."""
