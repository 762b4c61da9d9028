//! The catalogue: mlp, cnn11, resnet18, resnet20 (others come with their own issue).
