"""`Store` over SQLAlchemy Core; SQLite for now. One module a table family, `store.SqlStore` puts them together."""
