"""The rules: what each operation of the API means, over any store."""
