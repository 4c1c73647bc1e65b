"""For tests of programs that use gradcore; pytest finds ``pytest_gradcore`` by itself."""
