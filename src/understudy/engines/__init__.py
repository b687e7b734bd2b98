"""What two families of methods share: private records on a device, DP-SGD, critics, the mean embedding, the learner."""
