"""Records in answers: decoded, extracted, filtered, transformed and converted."""
