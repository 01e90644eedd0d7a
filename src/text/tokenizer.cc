#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "base/json/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/config.h"
#include "checkpoint/gguf/open_gguf.h"
#include "moracle/text.h"
#include "text/gguf/gguf_text.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/parse.h"
#include "text/tokenizer/parts.h"
#include "text/tokenizer/tiktoken_files.h"
#include "text/tokenizer/tokenizer_config.h"
#include "text/tokenizer/utf8.h"

namespace moracle {

struct Tokenizer::State : TokenizerParts {
  explicit State(TokenizerParts parts) : TokenizerParts(std::move(parts)) {}

  /// Encodes text that holds no raw added tokens. `at_start`: it begins the whole text.
  template <class Model>
  Status encode(const Model& words_to_ids, std::string_view text, bool at_start,
                EncodeProgress& progress, typename Model::Scratch& scratch,
                std::vector<int32_t>& ids) const {
    MORACLE_TRY(const std::string normalized, normalizer.apply(text));
    for (const auto& [range, id] : added.cut_normalized(normalized)) {
      if (id) {
        ids.push_back(*id);
        continue;
      }
      Words words{normalized.substr(range.begin, range.end - range.begin),
                  {},
                  at_start && range.begin == 0};
      words.ranges.push_back({0, words.text.size()});
      MORACLE_CHECK(pretokenizer.apply(words, progress));
      for (const TextRange& word : words.ranges) {
        if (!progress.step()) return EncodeProgress::stopped();
        const auto part = std::string_view(words.text).substr(word.begin, word.end - word.begin);
        MORACLE_CHECK(words_to_ids.encode(part, progress, scratch, ids));
      }
    }
    return {};
  }

  template <class Model>
  Result<std::vector<int32_t>> encode(const Model& words_to_ids, std::string_view text,
                                      const Progress& caller) const {
    EncodeProgress progress(caller, text.size());
    std::vector<int32_t> ids;
    typename Model::Scratch scratch;
    for (const auto& [range, id] : added.cut_raw(text)) {
      if (id) {
        ids.push_back(*id);
        continue;
      }
      if (!progress.call()) return EncodeProgress::stopped();
      const std::string_view part = text.substr(range.begin, range.end - range.begin);
      MORACLE_CHECK(encode(words_to_ids, part, range.begin == 0, progress, scratch, ids));
      progress.reach(range.end);
    }
    return ids;
  }
};

namespace {

Result<TokenModel> parse_model(const JsonField& field) {
  if (!field.is_object()) return field.bad("an object");
  const JsonField type = field["type"];
  if (type.value() == "Unigram") {
    MORACLE_TRY(Unigram unigram, Unigram::parse(field));
    return TokenModel(std::move(unigram));
  }
  // Old files lack "type": identify BPE by its merges.
  const bool old = type.is_null() && !field["merges"].is_null();
  if (!old && type.value() != "BPE") return type.unsupported("BPE or Unigram");
  MORACLE_TRY(Bpe bpe, Bpe::parse(field));
  return TokenModel(std::move(bpe));
}

}  // namespace

Result<TokenizerParts> parse_tokenizer_parts(const nlohmann::json& document,
                                             const std::string& file,
                                             const TokenizerConfig& config) {
  const JsonField root(document, file);
  if (!root.is_object())
    return Error{ErrorKind::kBadFile, file, "", "a JSON object", "it is not a JSON object"};
  // Ignore "truncation" and "padding": they are batch settings of the program that saved the file.
  MORACLE_TRY(Decoder decoder, Decoder::parse(root["decoder"]));
  MORACLE_TRY(Normalizer normalizer, Normalizer::parse(root["normalizer"]));
  MORACLE_TRY(Pretokenizer pretokenizer, Pretokenizer::parse(root["pre_tokenizer"]));
  MORACLE_TRY(TokenModel model, parse_model(root["model"]));
  const Vocabulary& vocabulary = vocabulary_of(model);
  const JsonField added_tokens = root["added_tokens"];
  MORACLE_TRY(AddedTokens added,
              AddedTokens::parse(added_tokens, vocabulary, normalizer, config.tokens));
  MORACLE_TRY(TokenTable tokens, TokenTable::make(vocabulary, added, added_tokens));
  MORACLE_TRY(PostProcessor post_processor, PostProcessor::parse(root["post_processor"], tokens));
  return TokenizerParts{
      std::move(normalizer), std::move(pretokenizer), std::move(model),          std::move(added),
      std::move(tokens),     std::move(decoder),      std::move(post_processor), config.eos};
}

Result<Tokenizer> parse_tokenizer(std::string_view json, const std::string& file,
                                  const TokenizerConfig& config) {
  MORACLE_TRY(const nlohmann::json document, parse_json(json, file));
  MORACLE_TRY(TokenizerParts parts, parse_tokenizer_parts(document, file, config));
  return make_tokenizer(std::move(parts));
}

Tokenizer make_tokenizer(TokenizerParts parts) {
  return Tokenizer(std::unique_ptr<const Tokenizer::State>(new Tokenizer::State(std::move(parts))));
}

Result<Tokenizer> Tokenizer::open(const std::string& folder) {
  MORACLE_TRY(const std::optional<Config> gguf, gguf_metadata(folder));
  if (gguf) {
    MORACLE_TRY(TokenizerParts parts, read_gguf_tokenizer(gguf->value(), gguf->path()));
    return make_tokenizer(std::move(parts));
  }
  const std::string path = folder + "/tokenizer.json";
  const std::string tekken = folder + "/tekken.json", tiktoken = folder + "/tiktoken.model";
  MORACLE_TRY(const TokenizerConfig config, TokenizerConfig::read(folder));
  if (!is_absent(path)) {
    MORACLE_TRY(const std::string json, read_small_file(path));
    return parse_tokenizer(json, path, config);
  }
  if (!is_absent(tekken)) {
    MORACLE_TRY(TokenizerParts parts, read_tekken(tekken));
    parts.eos = config.eos;
    return make_tokenizer(std::move(parts));
  }
  if (!is_absent(tiktoken)) {
    MORACLE_TRY(TokenizerParts parts, read_tiktoken(tiktoken, folder + "/tokenizer_config.json"));
    parts.eos = config.eos;
    return make_tokenizer(std::move(parts));
  }
  return Error{ErrorKind::kBadFile, path, "", "a tokenizer.json, tekken.json or tiktoken.model",
               "the file does not exist"};
}

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const Progress& progress) const {
  if (const auto bad = first_invalid_utf8(text)) {
    const int byte = static_cast<uint8_t>(text[*bad]);
    return Error{ErrorKind::kInvalidArgument, "", str("text, byte ", *bad), "valid UTF-8",
                 str("the sequence that begins with byte ", byte, " is invalid")};
  }
  return std::visit([&](const auto& model) { return state_->encode(model, text, progress); },
                    state_->model);
}

Result<std::vector<int32_t>> Tokenizer::encode_prompt(std::string_view text,
                                                      const Progress& progress) const {
  MORACLE_TRY(const std::vector<int32_t> ids, encode(text, progress));
  std::vector<int32_t> prompt = state_->post_processor.before;
  prompt.insert(prompt.end(), ids.begin(), ids.end());
  prompt.insert(prompt.end(), state_->post_processor.after.begin(),
                state_->post_processor.after.end());
  return prompt;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  DecodeState state = state_->decoder.begin();
  return decode(ids, skip_special, state);
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special,
                                      DecodeState& state) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const TokenText* token = state_->tokens.find(id);
    if (!token) {
      return Error{ErrorKind::kInvalidArgument, "", "ids",
                   str("ids of tokens, below ", vocab_size()), str(id)};
    }
    if (!skip_special || !token->special) state_->decoder.append(*token, state, bytes);
  }
  return bytes;
}

std::unique_ptr<DecodeState> Tokenizer::start_of_text() const {
  return std::make_unique<DecodeState>(state_->decoder.begin());
}

int64_t Tokenizer::vocab_size() const {
  return state_->tokens.end_of_ids();
}

std::vector<int32_t> Tokenizer::ids_without_token(int64_t vocab_size) const {
  std::vector<int32_t> ids;
  for (int64_t id = 0; id < vocab_size; ++id) {
    if (state_->tokens.find(static_cast<int32_t>(id)) == nullptr)
      ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  const auto added = state_->added.id(token);
  return added ? added : vocabulary_of(state_->model).id(token);
}

std::optional<int32_t> Tokenizer::eos_id() const {
  return state_->eos.empty() ? std::nullopt : id(state_->eos);
}

std::vector<int32_t> Tokenizer::end_ids() const {
  std::vector<int32_t> ids = state_->ends;
  const std::optional<int32_t> eos = eos_id();
  if (eos && std::find(ids.begin(), ids.end(), *eos) == ids.end()) ids.push_back(*eos);
  return ids;
}

bool Tokenizer::is_special(int32_t id) const {
  const TokenText* token = state_->tokens.find(id);
  return token && token->special;
}

}  // namespace moracle
