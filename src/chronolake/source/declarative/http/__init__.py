"""Requests to an API and its answers: credentials, budgets, errors and what is done about them."""
