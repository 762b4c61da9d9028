//! The fault plan: which fault strikes whom, where, when (pure), and its injection.
