// A folder that appears when it is whole: written beside its place under another name, then
// renamed.
#pragma once

#include <string>

#include "checkpoint/write/partial_folder.h"
#include "moracle/base.h"

namespace moracle {

class OutputFolder {
 public:
  /// Errors: `folder` holds something, is no folder, or lies inside `source`; kIo where the system
  /// refuses.
  static Result<OutputFolder> create(const std::string& folder, const std::string& source);

  /// Where to write.
  const std::string& path() const { return partial_.path(); }
  /// A new file with this content. Errors: kIo.
  Status write(const std::string& name, const std::string& content);
  /// Copies what belongs to the model but its weights, config.json, READMEs, references and hidden
  /// files; folders inside with what they hold. Errors: kIo.
  Status copy_rest(const std::string& source);
  /// Gives the folder its name.
  Status keep();

 private:
  OutputFolder(PartialFolder partial, std::string folder)
      : partial_(std::move(partial)), folder_(std::move(folder)) {}
  PartialFolder partial_;
  std::string folder_;
};

}  // namespace moracle
