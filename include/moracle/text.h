// Tokenizer (text to token ids and back) and chat templates.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle MORACLE_API {

struct DecodeState;     // internal
struct TokenizerParts;  // internal

/// Converts text to token ids and back, from a `tokenizer.json` with a BPE or Unigram model, a
/// `tekken.json` (Mistral), a `tiktoken.model` (Kimi) or the metadata of a GGUF file.
/// Immutable; safe to share between threads.
class Tokenizer {
 public:
  /// Reads `folder`/tokenizer.json, else tekken.json, else tiktoken.model. The special tokens and
  /// "added_tokens_decoder" of tokenizer_config.json add to the first, as in transformers. Of a
  /// model in GGUF, at a path that Checkpoint::open takes, reads the file's own metadata. Errors
  /// name the first unsupported construct.
  static Result<Tokenizer> open(const std::string& folder);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of UTF-8 text. Added tokens inside the text become their ids. Adds no special
  /// tokens. Errors: invalid UTF-8, with the byte; kCancelled.
  Result<std::vector<int32_t>> encode(std::string_view text, const Progress& progress = {}) const;
  /// The same with the special tokens that the file puts around a text, such as `<s>` before it:
  /// what transformers' tokenizer(text) gives. Chat templates write them themselves.
  Result<std::vector<int32_t>> encode_prompt(std::string_view text,
                                             const Progress& progress = {}) const;
  /// The joined bytes of the tokens. `skip_special` leaves special tokens out. The result may end
  /// inside a UTF-8 character: see TokenStream.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special = false) const;
  /// Number of ids, including added tokens: the largest id plus one.
  int64_t vocab_size() const;
  /// The ids below `vocab_size` without a token. Models may have more logits than tokens.
  std::vector<int32_t> ids_without_token(int64_t vocab_size) const;
  std::optional<int32_t> id(std::string_view token) const;
  /// The id of tokenizer_config.json's "eos_token", which ends an answer.
  std::optional<int32_t> eos_id() const;
  /// Ids that end an answer: eos_id(), and every other end token that a GGUF file has.
  std::vector<int32_t> end_ids() const;
  bool is_special(int32_t id) const;

 private:
  friend class TokenStream;
  std::unique_ptr<DecodeState> start_of_text() const;
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special,
                             DecodeState& state) const;
  friend Tokenizer make_tokenizer(TokenizerParts parts);
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

/// Decodes ids one by one and returns only whole UTF-8 characters.
class TokenStream {
 public:
  /// The tokenizer must outlive it.
  explicit TokenStream(const Tokenizer& tokenizer);
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) noexcept;
  ~TokenStream();
  /// Lets the ids continue a text that ends with `ids`, such as a prompt. A tokenizer that removes
  /// the space at the start of a text then keeps the space of the first id. Errors: ids without a
  /// token.
  Status follow(std::span<const int32_t> ids, bool skip_special = true);
  /// The text that this id completes; empty while a character is incomplete.
  Result<std::string> push(int32_t id, bool skip_special = true);
  /// Call at the end: returns U+FFFD if a character is incomplete.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::unique_ptr<DecodeState> state_;
  std::string pending_;
};

struct ChatMessage {
  std::string role;
  std::string content;
};

/// A conversation as JSON texts, in the form that transformers takes: arguments of tool calls are
/// objects.
struct ChatConversation {
  std::string messages;   ///< an array of objects with role, content, tool_calls and others
  std::string tools;      ///< an array of objects; empty: none
  std::string variables;  ///< an object of further variables for the template; empty: none
};

/// A chat template, in the subset of Jinja that published tokenizers use.
class ChatTemplate {
 public:
  /// Reads `folder`/chat_template.jinja, else "chat_template" of tokenizer_config.json, or
  /// "tokenizer.chat_template" of a model in GGUF. Errors: no template, or an unsupported
  /// construct, with its line.
  static Result<ChatTemplate> open(const std::string& folder);
  /// Parses the template's text. `special_tokens` are template variables such as bos_token.
  static Result<ChatTemplate> parse(std::string text, std::string origin,
                                    std::map<std::string, std::string> special_tokens = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  Result<std::string> render(std::span<const ChatMessage> messages,
                             bool add_generation_prompt = true) const;
  /// The same for every kind of message, and for tools, which may have a template of their own.
  /// Errors: no JSON, or of another type; those of the template.
  Result<std::string> render_json(const ChatConversation& conversation,
                                  bool add_generation_prompt = true) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

}  // namespace MORACLE_API
