//! The two slots in which a rank keeps the state of the last two committed steps (DESIGN 4.4).
