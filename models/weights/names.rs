//! The names of parameters and the form in which files hold them. A name is the path of the fields
//! that lead to a parameter; [`StateDict::key`] changes it where Hugging Face has another one.
//! Torch's `Linear` is stored transposed. The names of BERT's variants are in `config/variant.rs`.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// Modules whose weight files hold transposed.
pub(crate) const TRANSPOSED: [&str; 2] = ["Struct:Linear", "Struct:LowRank"];

/// Linear layers.
const LINEAR: [&str; 2] = ["Struct:Linear", "Struct:Conv1D"];

/// Other layers that may have an adapter.
const ADAPTED: [&str; 2] = ["Struct:Embedding", "Struct:OutputEmbedding"];

/// One parameter of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Burn's identity of the parameter, the key of its gradient.
    pub id: ParamId,
    /// Hugging Face's tensor name.
    pub name: String,
    /// Shape as Hugging Face stores it.
    pub shape: Vec<usize>,
    /// Hugging Face stores the transpose of ours (torch's `Linear`).
    pub transposed: bool,
    /// It belongs to a normalisation: a module whose type ends in `Norm`.
    pub in_norm: bool,
    /// It is the weight of a linear layer: of a module whose type is `Linear` or `Conv1D`.
    pub in_linear: bool,
    /// Its name in a file of what is [saved](StateDict::saved_as) of the model; none for one of a
    /// frozen base.
    pub saved_as: Option<String>,
}

/// How far from the input a parameter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The embeddings, with their LayerNorm.
    Embeddings,
    /// The layer of this number, from 0.
    Layer(usize),
    /// Everything above the layers: the last LayerNorm, the pooler, the head.
    Head,
}

impl Depth {
    /// Where in a model the tensor of this Hugging Face name stands.
    pub fn of(name: &str) -> Self {
        let mut segments = name.split('.').peekable();
        while let Some(segment) = segments.next() {
            match (segment, segments.peek().and_then(|next| next.parse().ok())) {
                ("h" | "layer" | "layers" | "albert_layer_groups", Some(number)) => return Self::Layer(number),
                ("embeddings" | "embed_tokens" | "wte" | "wpe", _) => return Self::Embeddings,
                ("embeddings_project" | "embedding_hidden_mapping_in", _) => return Self::Embeddings,
                _ => {}
            }
        }
        Self::Head
    }
}

impl Parameter {
    /// Where in the model it stands, by its Hugging Face name.
    pub fn depth(&self) -> Depth {
        Depth::of(&self.name)
    }

    /// Whether weight decay applies: not to biases and not to weights of normalisations, which are
    /// known by their module or, as in `Trainer.get_decay_parameter_names`, by a part of the name
    /// that is `norm` or ends in `_norm`.
    pub fn decays(&self) -> bool {
        let is_norm = |part: &str| part == "norm" || part.ends_with("_norm");
        !self.in_norm && !self.name.ends_with("bias") && !self.name.split('.').any(is_norm)
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A module whose parameters have names in files of weights: by default the path of its fields.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no names for its weights in files",
    note = "`impl StateDict for {Self} {{}}` names the weights of a Burn module by its fields"
)]
pub trait StateDict: Module {
    /// The name of the tensor at `path`, the names of the fields that lead to it, joined by dots.
    fn key(&self, path: String) -> String {
        path
    }

    /// Whether files hold the transpose of the field `weight` of a module of the type `container`,
    /// as Burn spells it.
    fn stores_transposed(&self, container: &str) -> bool {
        TRANSPOSED.contains(&container)
    }

    /// The file of weights in a saved folder.
    fn file(&self) -> &'static str {
        super::MODEL_FILE
    }

    /// Whether a file of the whole model may hold tensors that are tied in one of `transformers`
    /// under either name, or under both with the same values.
    fn base_is_tied(&self) -> bool {
        true
    }

    /// A second name under which the tensor called `name` is saved; as a rule it has none.
    fn also_saved_as(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// The name in that file of the tensor called `name`, which is as a rule the same; none for a
    /// tensor of a frozen base, which is in the base's folder and neither learns nor is saved.
    fn saved_as(&self, name: &str) -> Option<String> {
        Some(name.to_owned())
    }
}

/// Every parameter of `model`, in the order in which the model visits them. Creates nothing: shapes
/// of parameters that have not been drawn yet are known.
pub fn parameters<M: StateDict>(model: &M) -> Vec<Parameter> {
    let mut visitor = Names {
        key: &|path| model.key(path),
        saved_as: &|name| model.saved_as(name),
        transposed: &|container| model.stores_transposed(container),
        path: PathStack::default(),
        found: Vec::new(),
    };
    model.visit(&mut visitor);
    visitor.found
}

/// Follows a traversal and knows the path of the place it is at.
#[derive(Debug, Default)]
pub(super) struct PathStack {
    segments: Vec<(String, String)>,
}

impl PathStack {
    pub(super) fn enter(&mut self, name: &str, container: &str) {
        self.segments.push((name.to_string(), container.to_string()));
    }

    pub(super) fn exit(&mut self) {
        self.segments.pop();
    }

    /// The path of the fields. An enum's variant is no part of it, nor is the field with a layer's
    /// adapter.
    fn name(&self) -> String {
        let is_part = |(name, container): &&(String, String)| {
            let has_adapter = |containers: &[&str]| containers.contains(&container.as_str());
            let is_adapter = name == "lora" && (has_adapter(&LINEAR) || has_adapter(&ADAPTED));
            !container.starts_with("Enum:") && !is_adapter
        };
        let fields = self.segments.iter().filter(is_part);
        fields.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }

    pub(super) fn transposed(&self, transposed: impl Fn(&str) -> bool) -> bool {
        self.segments.last().is_some_and(|(name, container)| name == "weight" && transposed(container))
    }

    pub(super) fn in_linear(&self) -> bool {
        self.segments.last().is_some_and(|(name, container)| name == "weight" && LINEAR.contains(&container.as_str()))
    }

    pub(super) fn in_norm(&self) -> bool {
        self.segments.last().is_some_and(|(_, container)| container.ends_with("Norm"))
    }
}

struct Names<'a> {
    key: &'a dyn Fn(String) -> String,
    saved_as: &'a dyn Fn(&str) -> Option<String>,
    transposed: &'a dyn Fn(&str) -> bool,
    path: PathStack,
    found: Vec<Parameter>,
}

impl ModuleVisitor for Names<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let transposed = self.path.transposed(self.transposed);
        let mut shape = param.lazy_shape().to_vec();
        if transposed {
            shape.reverse();
        }
        let (name, in_norm) = ((self.key)(self.path.name()), self.path.in_norm());
        let (in_linear, saved_as) = (self.path.in_linear(), (self.saved_as)(&name));
        self.found.push(Parameter { id: param.id, name, shape, transposed, in_norm, in_linear, saved_as });
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct RmsNorm {
        gamma: Param<Tensor<1>>,
    }

    #[derive(Module, Debug)]
    struct Net {
        first: RmsNorm,
        layer_norm: Param<Tensor<1>>,
        normal: Param<Tensor<1>>,
        bias: Param<Tensor<1>>,
    }
    impl StateDict for Net {}

    /// The names are those of the fields, also where Kiln's own models have other ones.
    #[test]
    fn weight_decay_leaves_out_biases_and_every_normalisation() {
        let device = Device::flex();
        let param = || Param::from_tensor(Tensor::<1>::ones([2], &device));
        let net = Net { first: RmsNorm { gamma: param() }, layer_norm: param(), normal: param(), bias: param() };
        let decays = parameters(&net).into_iter().map(|it| (it.decays(), it.name)).collect::<Vec<_>>();
        let expected = [(false, "first.gamma"), (false, "layer_norm"), (true, "normal"), (false, "bias")];
        assert_eq!(decays, expected.map(|(decays, name)| (decays, name.to_owned())));
    }
}
