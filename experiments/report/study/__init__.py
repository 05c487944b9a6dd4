"""What a study of predictors found, on a terminal and as a page: errors, predictions, fronts and choices."""
