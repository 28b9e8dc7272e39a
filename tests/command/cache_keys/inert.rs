//! Settings and names that change no example, with the reason.

/// Settings that change no example, with the case in which each is tried, further settings that it
/// needs, and the reason. Without a case no run of these can have it.
type Inert = (&'static str, &'static str, &'static [&'static str], &'static str);

const SHAPE: &str = "it is the shape of the weights or of what is computed from an example";
const BATCH: &str = "rows are padded and put in order when they are in a batch";
const FOUND: &str = "it is about the answers that are looked for in what the model says of a window";

pub(super) const CHANGES_NOTHING: &[Inert] = &[
    ("data.padding = \"max_length\"", "rows_of_tables", &[], BATCH),
    ("data.pad_to_multiple_of = 4", "rows_of_tables", &[], BATCH),
    ("data.buckets = 2", "rows_of_tables", &["data.padding = \"buckets\""], BATCH),
    ("data.sampler = \"random\"", "rows_of_tables", &[], BATCH),
    ("data.test = \"other.csv\"", "", &[], "rows that are predicted are encoded then, and are not kept"),
    ("data.n_best_size = 2", "windows_of_questions", &[], FOUND),
    ("data.max_answer_length = 2", "windows_of_questions", &[], FOUND),
    ("data.null_score_diff_threshold = 2.0", "windows_of_questions", &[], FOUND),
    ("data.version_2_with_negative = true", "windows_of_questions", &[], FOUND),
    ("model.size = \"base\"", "rows_of_tables", &[], SHAPE),
    ("model.pad_to_multiple_of = 64", "pretrained", &["model.resize_token_embeddings = true"], SHAPE),
    ("model.n_embd = 16", "classes_of_gpt2", &[], SHAPE),
    ("model.n_layer = 2", "classes_of_gpt2", &[], SHAPE),
    ("model.n_head = 2", "classes_of_gpt2", &[], SHAPE),
    ("model.n_inner = 16", "classes_of_gpt2", &[], SHAPE),
    ("model.activation_function = \"gelu\"", "classes_of_gpt2", &[], SHAPE),
    ("model.resid_pdrop = 0.5", "classes_of_gpt2", &[], SHAPE),
    ("model.embd_pdrop = 0.5", "classes_of_gpt2", &[], SHAPE),
    ("model.attn_pdrop = 0.5", "classes_of_gpt2", &[], SHAPE),
    ("model.layer_norm_epsilon = 1e-3", "classes_of_gpt2", &[], SHAPE),
    ("model.scale_attn_weights = false", "classes_of_gpt2", &[], SHAPE),
    ("model.window_size = 4", "classes_of_neo", &[], SHAPE),
    ("model.attention_types = [[[\"global\"], 1]]", "classes_of_neo", &[], SHAPE),
    ("model.initializer_range = 0.1", "classes_of_gpt2", &[], SHAPE),
    ("model.embedding_size = 4", "rows_of_tables", &["model.kind = \"electra\""], SHAPE),
    ("model.hidden_size = 16", "rows_of_tables", &[], SHAPE),
    ("model.num_hidden_layers = 2", "rows_of_tables", &[], SHAPE),
    ("model.num_attention_heads = 2", "rows_of_tables", &[], SHAPE),
    ("model.intermediate_size = 16", "rows_of_tables", &[], SHAPE),
    ("model.hidden_act = \"gelu_new\"", "rows_of_tables", &[], SHAPE),
    ("model.hidden_dropout_prob = 0.5", "rows_of_tables", &[], SHAPE),
    ("model.attention_probs_dropout_prob = 0.5", "rows_of_tables", &[], SHAPE),
    ("model.classifier_dropout = 0.5", "rows_of_tables", &[], SHAPE),
    ("model.qa_dropout = 0.5", "", &[], SHAPE),
    ("model.layer_norm_eps = 1e-3", "rows_of_tables", &[], SHAPE),
    ("model.tie_word_embeddings = false", "rows_of_tables", &[], SHAPE),
    ("model.num_key_value_heads = 1", "classes_of_llama", &[], SHAPE),
    ("model.head_dim = 6", "classes_of_llama", &[], SHAPE),
    ("model.rms_norm_eps = 1e-3", "classes_of_llama", &[], SHAPE),
    ("model.rope_parameters = {rope_type = \"linear\", factor = 2.0}", "classes_of_llama", &[], SHAPE),
    ("model.attention_bias = true", "classes_of_llama", &[], SHAPE),
    ("model.attention_dropout = 0.5", "classes_of_llama", &[], SHAPE),
    ("model.mlp_bias = true", "classes_of_llama", &[], SHAPE),
    (
        "model.sliding_window = 2",
        "classes_of_llama",
        &["model.kind = \"mistral\"", "model.num_key_value_heads = 1"],
        SHAPE,
    ),
    (
        "model.use_sliding_window = true",
        "classes_of_llama",
        &["model.kind = \"qwen2\"", "model.num_key_value_heads = 1"],
        SHAPE,
    ),
    (
        "model.max_window_layers = 0",
        "classes_of_llama",
        &["model.kind = \"qwen2\"", "model.num_key_value_heads = 1"],
        SHAPE,
    ),
    (
        "model.layer_types = [\"full_attention\"]",
        "classes_of_llama",
        &["model.kind = \"qwen2\"", "model.num_key_value_heads = 1"],
        SHAPE,
    ),
    (
        "model.no_rope_layers = [0]",
        "classes_of_llama",
        &["model.kind = \"smollm3\"", "model.num_key_value_heads = 1"],
        SHAPE,
    ),
    (
        "model.no_rope_layer_interval = 1",
        "classes_of_llama",
        &["model.kind = \"smollm3\"", "model.num_key_value_heads = 1"],
        SHAPE,
    ),
    ("model.problem_type = \"single_label_classification\"", "rows_of_tables", &[], SHAPE),
    (
        "model.label2id = {\"good\" = 0, \"bad\" = 1}",
        "",
        &[],
        "ids have their names in id2label, with which it has to agree",
    ),
];

/// Files of a tokenizer and arguments in them that change no example, and why.
pub(super) const NOT_READ: &[(&str, &str)] = &[
    ("chat_template.json", "it is kept with a model and belongs to processors of pictures and sound"),
    ("sentencepiece.model", "it is kept with a model; the classes that read it are refused"),
    ("tokenizer.model", "it is kept with a model; the classes that read it are refused"),
    ("clean_up_tokenization_spaces", "it is about decoded text"),
    ("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "it is about decoded text"),
];
