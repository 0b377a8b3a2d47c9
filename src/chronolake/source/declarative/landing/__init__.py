"""Landing: types, keys and files of records on their way to the raw lake."""
