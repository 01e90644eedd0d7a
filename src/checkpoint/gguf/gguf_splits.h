// The files of one model in GGUF: one file, or a split into several.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/gguf/gguf_file.h"
#include "moracle/base.h"

namespace moracle {

/// The opened files of one model.
struct GgufSplits {
  nlohmann::json metadata;  ///< of the first file, without split.*
  std::vector<TensorFile> files;
  std::vector<std::string> left_out;  ///< names of files beside it that hold image encoders
};

/// True if open_gguf_splits() concerns this path: a GGUF file by name or content, or a folder with
/// such files and no config.json.
bool is_gguf_path(const std::string& path);

/// Opens the model at `path`: a file, any file of a split (model-00001-of-00003.gguf), or a folder
/// that holds one model. Errors: those of GgufFile::open; a folder with several models, with their
/// names; a missing file; files whose split.no, split.count or split.tensors.count are wrong.
Result<GgufSplits> open_gguf_splits(const std::string& path);

}  // namespace moracle
