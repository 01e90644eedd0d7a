// libFuzzer: the bytes are the body of a request in each dialect. The result is jobs within the
// limits, or an Error that names the place.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/dialects/dialects.h"
#include "text/tokenizer/parse.h"
#include "text/tokenizer/pre_tokenizer/byte_level.h"

namespace moracle::testing::serve_request_fuzz {

namespace {

using nlohmann::json;

serve::ServedModel make_model() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_byte_level(std::string(1, static_cast<char>(byte)), token);
    vocab[token] = byte;
  }
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json file = {{"pre_tokenizer", bytes},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  auto tokenizer = parse_tokenizer(file.dump(), "fuzz");
  auto chat = ChatTemplate::parse(
      "{{ tools | tojson }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
      "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor "
      "%}"
      "{% endfor %}",
      "fuzz");
  if (!tokenizer || !chat) std::abort();
  serve::ServedModel model{.name = "fuzz", .tokenizer = *std::move(tokenizer)};
  model.dialect = serve::find_dialect(*chat);
  if (!model.dialect.format) std::abort();
  model.chat = *std::move(chat);
  model.excluded_ids = {250};
  if (!model.adapters->add("other", nullptr)) std::abort();
  model.vocab_size = 256;
  model.max_context = 4096;
  return model;
}

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Result<serve::GenerationRequest>& request) {
  if (!request) return require(!request.error().need.empty());
  require(!request->jobs.empty() && request->jobs.size() <= 1024);
  require(request->jobs.size() == request->prompts.size() * request->choices);
  for (const serve::Job& job : request->jobs) {
    require(!job.prompt.empty() && job.max_tokens >= 0);
    require(static_cast<int64_t>(job.prompt.size()) + job.max_tokens <= 4096);
    require(moracle::check(job.sampling).ok());
    for (const int32_t id : job.prompt) require(id >= 0 && id < 256 && id != 250);
  }
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  static const serve::ServedModel model = make_model();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto body = serve::parse_body(text);
  if (!body) return 0;
  check(serve::read_completion(*body, text, model));
  check(serve::read_chat(*body, text, model));
  check(serve::read_messages(*body, text, model));
  static serve::ResponseStore store;
  store.add("stored", {.items = R"([{"role": "user", "content": "a"}])", .reply = "{}"});
  check(serve::read_responses(*body, text, model, store));
  return 0;
}

}  // namespace moracle::testing::serve_request_fuzz
