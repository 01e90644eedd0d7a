// Keys and tensors of a checkpoint that the library does not use, with reasons. For users.
#pragma once

#include <string>
#include <vector>

#include "models/description.h"

namespace moracle {

struct NotRead {
  struct Entry {
    std::string why;
    std::vector<std::string> names;  ///< of keys; of tensors: prefixes, or names with * for numbers
    int64_t num_tensors = 0;
    int64_t bytes = 0;
  };
  std::vector<Entry> keys;  ///< of config.json, or of GGUF's metadata
  std::vector<Entry> tensors;
};

/// `description` is that of the checkpoint; null: only its experts can be used. The checkpoint must
/// be described before: keys count as not read until then.
NotRead not_read(const Checkpoint& checkpoint, const Description* description);

}  // namespace moracle
