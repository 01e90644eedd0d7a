// A folder that appears only when it is complete. It is written under another name beside its final
// place, then renamed.
#pragma once

#include <string>

#include "checkpoint/write/partial_folder.h"
#include "moracle/base.h"

namespace moracle {

class OutputFolder {
 public:
  /// Errors: `folder` is not empty, is not a folder, or lies inside `source`; kIo if the system
  /// refuses.
  static Result<OutputFolder> create(const std::string& folder, const std::string& source);

  /// The path to write to.
  const std::string& path() const { return partial_.path(); }
  /// Creates a file with this content. Errors: kIo.
  Status write(const std::string& name, const std::string& content);
  /// Copies the other files and folders of the model. Skips weights, config.json, READMEs,
  /// reference.json and hidden files. Errors: kIo.
  Status copy_rest(const std::string& source);
  /// Renames the folder to its final name.
  Status keep();

 private:
  OutputFolder(PartialFolder partial, std::string folder)
      : partial_(std::move(partial)), folder_(std::move(folder)) {}
  PartialFolder partial_;
  std::string folder_;
};

}  // namespace moracle
