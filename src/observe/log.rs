//! Writes events and ledger lines, reads them back.
