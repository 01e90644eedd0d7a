// The state of a prompt as a file: its tokens, their keys and values, and the state of recurrent
// layers. A file belongs to one model: to its config, weights, schemes and adapters.
#pragma once

#include <string>

#include "moracle/model.h"

namespace moracle {

/// The source of a model, as it was loaded, and the adapter of a sequence.
struct SequenceSource {
  const Checkpoint& checkpoint;
  const ModelOptions& options;
  int32_t adapter = -1;  ///< see Model::Step
};

/// Writes a sequence, in place of an older file and only when it is complete. Errors: kIo; a path
/// that is no regular file; those of the device.
Status save_sequence(Model& model, const SequenceSource& source, const KeptSequence& sequence,
                     const std::string& path);

/// Reads a sequence. Its capacity is at least `capacity`, and at most the model's context. Errors:
/// kBadFile for another model, other options or adapters, and for a file that is cut or damaged;
/// kOutOfMemory; those of the device.
Result<KeptSequence> load_sequence(Model& model, const SequenceSource& source,
                                   const std::string& path, int64_t capacity);

/// Computes all tokens of a prompt but the last into a kept sequence, so that generate() computes
/// one. Returns the number of tokens that were there. Errors: of Model::forward; an empty prompt;
/// a sequence without space for the prompt.
Result<int64_t> read_prompt(Model& model, std::span<const int32_t> prompt, KeptSequence& sequence,
                            int32_t adapter, const Progress& progress = {});

/// Leaves in a sequence what it shares with the prompt, at most all tokens but the last, and
/// returns the number of these tokens. Errors: ids that do not belong to the cache.
Result<int64_t> keep_beginning(KeptSequence& sequence, std::span<const int32_t> prompt);

}  // namespace moracle
