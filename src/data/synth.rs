//! `kintsugi data synth`: procedural JPEG images with classes that take time to learn.
