//! Tables of the names in the files of a tokenizer, with Kiln's treatment of each name.

use kiln_core::names::{Name, NameTable, Unknown};
use serde_json::json;

/// GPT-2's end-of-text token, which also separates documents.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// The file of the class and its arguments.
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// The file of special tokens, which tokenizers of today have in [`CONFIG`].
pub(super) const SPECIAL: &str = "special_tokens_map.json";

const ROLE: &str = "the token of this role, which is special";
const FURTHER: &str = "a further special token of this tokenizer, by its name in chat templates too";
const OTHERS: &str = "an argument of classes that are refused; the others do not look at it";
const OLDER: &str = "an argument of transformers 4, at which the classes of transformers 5 do not look";
const CALL: &str = "a value for calls, which the settings of data replace";
const FILES: &str = "the files of the folder are read, whatever stands here";
const WRITER: &str = "a note of the program that wrote the file";
const LIST: &str = "further special tokens";

/// `tokenizer_config.json`
pub static CONFIG_NAMES: NameTable = NameTable {
    file: CONFIG,
    source: "transformers 5.24",
    names: &[
        Name::honoured("tokenizer_class", "the class decides how text becomes ids: see the table of classes"),
        Name::told(
            "auto_map",
            "code of a folder is not run; the class that tokenizer_class names is read, as without trust_remote_code",
        ),
        Name::honoured("bos_token", ROLE),
        Name::honoured("eos_token", ROLE),
        Name::honoured("unk_token", ROLE),
        Name::honoured("sep_token", ROLE),
        Name::honoured("pad_token", ROLE),
        Name::honoured("cls_token", ROLE),
        Name::honoured("mask_token", ROLE),
        Name::honoured("extra_special_tokens", "further special tokens, in a list or by name"),
        Name::honoured("additional_special_tokens", "further special tokens, where extra_special_tokens states none"),
        Name::honoured("model_specific_special_tokens", FURTHER),
        Name::honoured("added_tokens_decoder", "tokens with their ids; beside it the two older files do not count"),
        Name::honoured("do_lower_case", "whether text is put in lower case, whatever tokenizer.json says"),
        Name::honoured("strip_accents", "whether accents are stripped, whatever tokenizer.json says"),
        Name::honoured("tokenize_chinese_chars", "whether each Chinese character is a word"),
        Name::honoured("keep_accents", "ALBERT: whether accents stay"),
        Name::honoured("add_prefix_space", "whether a text begins with a space"),
        Name::honoured("add_bos_token", "where there is no tokenizer.json, whose post_processor counts"),
        Name::honoured("add_eos_token", "where there is no tokenizer.json, whose post_processor counts"),
        Name::honoured("split_by_punct", "DeBERTa-v2: whether punctuation ends a word"),
        Name::honoured("split_special_tokens", "whether special tokens in a text are taken for text"),
        Name::honoured("trim_offsets", "RoBERTa: whether the place of a token leaves out spaces"),
        Name::honoured("extra_ids", "T5: the number of further tokens"),
        Name::honoured("unk_id", "DeBERTa-v2: the piece for what is unknown"),
        Name::honoured("truncation_side", "the side that a text which is too long loses"),
        Name::honoured("clean_up_tokenization_spaces", "whether decoded text loses spaces before punctuation"),
        Name::honoured(
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            "whether that is done for a BPE too",
        ),
        Name::honoured("chat_template", "the template of conversations"),
        Name::told_unless(
            "padding_side",
            || json!("right"),
            "rows are padded on the right, where padding changes no position",
        ),
        Name::inert("model_max_length", "rows are cut to data.max_length, and the model's positions bound them"),
        Name::inert("model_input_names", "token types are given to a model that has several"),
        Name::inert(
            "errors",
            "bytes that are no character become U+FFFD in decoded text, as in every class of transformers 5",
        ),
        Name::honoured("legacy", "whether Llama's class puts a space before each text between special tokens"),
        Name::refused("fast_tokenizer_files", "tokenizer.json alone is read, not a file for a version of transformers"),
        Name::refused("gguf_file", "GGUF is not read"),
        Name::only("init_inputs", || json!([]), "arguments without a name are not read"),
        Name::only("fix_mistral_regex", || json!(false), "the repair of Mistral's files is not implemented"),
        Name::refused("vocab", "the vocabulary is read from its own file"),
        Name::refused("merges", "the merges are read from their own file"),
        Name::inert("vocab_file", FILES),
        Name::inert("merges_file", FILES),
        Name::inert("tokenizer_file", FILES),
        Name::inert("special_tokens_map_file", FILES),
        Name::inert("tokenizer_object", FILES),
        Name::inert("files_loaded", FILES),
        Name::inert("name_or_path", WRITER),
        Name::inert("is_local", WRITER),
        Name::inert("local_files_only", WRITER),
        Name::inert("repo_id", WRITER),
        Name::inert("device_map", WRITER),
        Name::inert("_commit_hash", WRITER),
        Name::inert("_from_auto", WRITER),
        Name::inert("_from_pipeline", WRITER),
        Name::inert("proxies", WRITER),
        Name::inert("subfolder", WRITER),
        Name::inert("backend", WRITER),
        Name::inert("processor_class", WRITER),
        Name::inert("slow_tokenizer_class", WRITER),
        Name::inert("transformers_version", WRITER),
        Name::inert("verbose", WRITER),
        Name::inert("commit_message", WRITER),
        Name::inert("save_jinja_files", WRITER),
        Name::inert("token", "a key for downloads"),
        Name::inert("tokenizer", "transformers takes it away"),
        Name::inert("max_len", "the older name of model_max_length"),
        Name::inert("max_length", CALL),
        Name::inert("stride", CALL),
        Name::inert("truncation_strategy", CALL),
        Name::inert("pad_to_multiple_of", CALL),
        Name::inert("pad_token_type_id", "padding has the type 0 in every class that is implemented"),
        Name::inert("return_token_type_ids", CALL),
        Name::inert("response_template", "it takes generated text apart, which Kiln does not"),
        Name::inert("response_schema", "it takes generated text apart, which Kiln does not"),
        Name::inert(
            "chat_control_tokens",
            "transformers looks for them in the messages of a chat alone when it is asked to",
        ),
        Name::inert("tokenizer_padding", "lengths are the batch's business"),
        Name::inert("tokenizer_truncation", "lengths are the batch's business"),
        Name::inert("_json_padding", "lengths are the batch's business"),
        Name::inert("_json_truncation", "lengths are the batch's business"),
        Name::inert("_spm_precompiled_charsmap", FILES),
        Name::inert("post_processor", FILES),
        Name::inert("do_basic_tokenize", OLDER),
        Name::inert("never_split", OLDER),
        Name::inert("sp_model_kwargs", OLDER),
        Name::inert("use_fast", OLDER),
        Name::inert("from_slow", OLDER),
        Name::inert("remove_space", OLDER),
        Name::inert("full_tokenizer_file", OLDER),
        Name::inert("trust_remote_code", OLDER),
        Name::inert("word_tokenizer_type", OTHERS),
        Name::inert("subword_tokenizer_type", OTHERS),
        Name::inert("mecab_kwargs", OTHERS),
        Name::inert("sudachi_kwargs", OTHERS),
        Name::inert("jumanpp_kwargs", OTHERS),
        Name::inert("do_word_tokenize", OTHERS),
        Name::inert("do_subword_tokenize", OTHERS),
        Name::inert("clean_text", OTHERS),
        Name::inert("wordpieces_prefix", OTHERS),
        Name::inert("cls_token_box", OTHERS),
        Name::inert("pad_token_box", OTHERS),
        Name::inert("sep_token_box", OTHERS),
        Name::inert("pad_token_label", OTHERS),
        Name::inert("only_label_first_subword", OTHERS),
        Name::inert("entity_vocab", OTHERS),
        Name::inert("max_entity_length", OTHERS),
        Name::inert("max_mention_length", OTHERS),
        Name::inert("task", OTHERS),
        Name::inert("language", OTHERS),
        Name::inert("predict_timestamps", OTHERS),
        Name::inert("normalizer_file", OTHERS),
        Name::inert("src_lang", OTHERS),
        Name::inert("tgt_lang", OTHERS),
        Name::inert("legacy_behaviour", OTHERS),
        Name::inert("offset", OTHERS),
        Name::inert("mask_token_sent", OTHERS),
        Name::inert("max_depth", OTHERS),
        Name::inert("max_width", OTHERS),
        Name::inert("pad_width", OTHERS),
        Name::inert("tags_dict", OTHERS),
        Name::inert("token_type_ids_pattern", OTHERS),
        Name::inert("use_default_system_prompt", OTHERS),
        Name::honoured("chain_break_token", FURTHER),
        Name::honoured("entity_1_token", FURTHER),
        Name::honoured("entity_2_token", FURTHER),
        Name::honoured("entity_mask_token", FURTHER),
        Name::honoured("entity_mask2_token", FURTHER),
        Name::honoured("entity_pad_token", FURTHER),
        Name::honoured("entity_unk_token", FURTHER),
        Name::honoured("eot_token", FURTHER),
        Name::honoured("fill_token", FURTHER),
        Name::honoured("middle_token", FURTHER),
        Name::honoured("prefix_token", FURTHER),
        Name::honoured("question_token", FURTHER),
        Name::honoured("suffix_token", FURTHER),
    ],
    unknown: Unknown::Told,
};

/// `special_tokens_map.json`
pub static SPECIAL_NAMES: NameTable = NameTable {
    file: SPECIAL,
    source: "transformers 5.24",
    names: &[
        Name::honoured("bos_token", ROLE),
        Name::honoured("eos_token", ROLE),
        Name::honoured("unk_token", ROLE),
        Name::honoured("sep_token", ROLE),
        Name::honoured("pad_token", ROLE),
        Name::honoured("cls_token", ROLE),
        Name::honoured("mask_token", ROLE),
        Name::honoured("extra_special_tokens", LIST),
        Name::honoured("additional_special_tokens", LIST),
    ],
    unknown: Unknown::Told,
};

/// `tokenizer.json`
pub static JSON_NAMES: NameTable = NameTable {
    file: "tokenizer.json",
    source: "tokenizers 0.23",
    names: &[
        Name::inert("version", "there is one version of the format"),
        Name::honoured(
            "truncation",
            "its direction, where tokenizer_config.json has no truncation_side; rows are cut to data.max_length",
        ),
        Name::honoured("padding", "its pad_token, where tokenizer_config.json has none and the class none of its own"),
        Name::honoured(
            "added_tokens",
            "where tokenizer_config.json has no added_tokens_decoder, and by classes that read the file as it stands",
        ),
        Name::honoured(
            "normalizer",
            "by classes that read the file as it stands; of others, the rule of SentencePiece alone",
        ),
        Name::honoured("pre_tokenizer", "by classes that read the file as it stands"),
        Name::honoured("post_processor", "by classes that have none of their own"),
        Name::honoured("decoder", "by classes that read the file as it stands"),
        Name::honoured("model", "vocabulary and merges; the rest by classes that read the file as it stands"),
    ],
    unknown: Unknown::Told,
};
