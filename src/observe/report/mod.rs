//! Reports drawn from events: curves, statistics, SVG, one self-contained HTML file. Pure: events in, text out.
