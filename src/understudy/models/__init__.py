"""Networks: generators that are released, critics and classifiers that are not. One file each."""
