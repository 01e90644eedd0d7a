// Maps field names in library errors ("kv_cache") to the command's options ("--kv-cache").
#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "command.h"

namespace moracle::cli {
namespace {

struct OtherName {
  std::string_view field, option;
};
// Options whose name differs from the field's.
constexpr OtherName kOtherNames[] = {
    {"bad_words_ids", "--bad-words"},
    {"batches", "--batch"},
    {"device_memory", "--gpu-memory"},
    {"host_memory", "--cpu-memory"},
    {"max_num_tokens", "--num-tokens"},
    {"max_running", "--max-sequences"},
    {"max_shard_bytes", "--max-shard-size"},
    {"num_layers", "--layers"},
    {"quantization", "--scheme"},
    {"timeout_seconds", "--timeout"},
};

// Returns the option of `verb` that sets the field, or the field if there is none.
std::string option_of(const CLI::App& verb, const std::string& field) {
  std::string option = "--" + field;
  std::replace(option.begin(), option.end(), '_', '-');
  if (verb.get_option_no_throw(option) != nullptr) return option;
  for (const OtherName& other : kOtherNames) {
    const std::string name(other.option);
    if (field == other.field && verb.get_option_no_throw(name) != nullptr) return name;
  }
  return field;
}

}  // namespace

Error with_options(Error error, const CLI::App& verb) {
  // An error with a file has a key of that file as its place: keep it.
  if (error.file.empty() || error.kind == ErrorKind::kInvalidArgument)
    error.place = option_of(verb, error.place);
  if (const size_t open = error.need.rfind('('); open != error.need.npos) {
    const size_t close = std::min(error.need.find(')', open), error.need.size());
    const std::string mentioned = error.need.substr(open + 1, close - open - 1);
    error.need.replace(open + 1, mentioned.size(), option_of(verb, mentioned));
  }
  return error;
}

}  // namespace moracle::cli
