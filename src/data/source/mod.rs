//! Readers: image_folder, cifar, mnist, synthetic.
