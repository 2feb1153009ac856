"""The methods of the async client, one module per resource, as the endpoints have them."""
