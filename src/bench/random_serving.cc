#include "bench/random_serving.h"

#include "base/text.h"
#include "base/try.h"
#include "bench/random_model.h"
#include "models/decoder/model_state.h"
#include "text/tokenizer/parse.h"
#include "text/tokenizer/pre_tokenizer/byte_level.h"

namespace moracle::bench {

Result<Model> load_random(const ModelShape& shape, const Scheme& scheme, int64_t num_layers,
                          int64_t most_bytes, const ModelOptions& options) {
  if (num_layers < 1 || num_layers > shape.num_layers) {
    return Error{ErrorKind::kInvalidArgument, "", "num_layers",
                 str("1 to ", shape.num_layers, " layers"), str("it is ", num_layers)};
  }
  MORACLE_TRY(RandomModel random,
              random_model(shape, {scheme, {kBF16Weight, {}}, num_layers, most_bytes}));
  return ModelAccess::load(std::move(random.description), options, {}, random.bytes);
}

Result<Tokenizer> random_tokenizer(int64_t vocab_size) {
  // The texts need no escapes in JSON but for two bytes.
  std::string vocab;
  for (int64_t id = 0; id < vocab_size; ++id) {
    std::string token;
    append_byte_level(id < 256 ? std::string(1, static_cast<char>(id)) : str(" ", id), token);
    if (token == "\"" || token == "\\") token.insert(0, "\\");
    vocab += str(id > 0 ? "," : "", "\"", token, "\":", id);
  }
  return parse_tokenizer(str(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
             "use_regex": false}, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "merges": [], "vocab": {)",
                             vocab, "}}}"),
                         "random weights");
}

}  // namespace moracle::bench
