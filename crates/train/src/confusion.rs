//! The confusion matrix of a classification. The formulas are those of scikit-learn.

/// How often each class was predicted for each class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    num_labels: usize,
    /// `[expected * num_labels + predicted]`
    counts: Vec<u64>,
}

impl Confusion {
    /// Counts pairs of expected and predicted classes.
    ///
    /// # Panics
    /// A class that is not below `num_labels`: it would count as another one.
    pub fn new(num_labels: usize, pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut counts = vec![0; num_labels * num_labels];
        for (expected, predicted) in pairs {
            assert!(
                expected < num_labels && predicted < num_labels,
                "expected classes below {num_labels}, got {expected} and {predicted}"
            );
            counts[expected * num_labels + predicted] += 1;
        }
        Self { num_labels, counts }
    }

    /// How many classes there are.
    pub fn num_labels(&self) -> usize {
        self.num_labels
    }

    /// How often `predicted` was predicted for `expected`.
    pub fn count(&self, expected: usize, predicted: usize) -> u64 {
        self.counts[expected * self.num_labels + predicted]
    }

    fn expected(&self, class: usize) -> u64 {
        (0..self.num_labels).map(|predicted| self.count(class, predicted)).sum()
    }

    fn predicted(&self, class: usize) -> u64 {
        (0..self.num_labels).map(|expected| self.count(expected, class)).sum()
    }

    /// F1, the harmonic mean of precision and recall: of class 1 for two labels
    /// (`average="binary"`), else the mean over the classes that occur among labels or predictions
    /// (`average="macro"`). 0 where it is 0 / 0.
    pub fn f1(&self) -> f64 {
        let of_class = |class: usize| {
            let both = (self.expected(class) + self.predicted(class)) as f64;
            if both == 0.0 { 0.0 } else { 2.0 * self.count(class, class) as f64 / both }
        };
        if self.num_labels == 2 {
            return of_class(1);
        }
        let occurs = |class: &usize| self.expected(*class) + self.predicted(*class) > 0;
        let values = (0..self.num_labels).filter(occurs).map(of_class).collect::<Vec<_>>();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    }

    /// Matthews' correlation coefficient for any number of classes (Gorodkin 2004); 0 where labels
    /// or predictions are all of one class, as in scikit-learn.
    pub fn matthews_correlation(&self) -> f64 {
        let classes = || 0..self.num_labels;
        let total = self.counts.iter().sum::<u64>() as f64;
        let right = classes().map(|class| self.count(class, class)).sum::<u64>() as f64;
        let product = |a: &dyn Fn(usize) -> u64, b: &dyn Fn(usize) -> u64| -> f64 {
            classes().map(|class| a(class) as f64 * b(class) as f64).sum()
        };
        let (expected, predicted) = (|class| self.expected(class), |class| self.predicted(class));
        let covariance = right * total - product(&expected, &predicted);
        let of_expected = total * total - product(&expected, &expected);
        let of_predicted = total * total - product(&predicted, &predicted);
        let scale = (of_expected * of_predicted).sqrt();
        if scale == 0.0 { 0.0 } else { covariance / scale }
    }
}
