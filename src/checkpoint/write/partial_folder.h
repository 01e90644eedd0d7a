// A hidden folder to write into, which goes with its owner, however that ends.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle {

class PartialFolder {
 public:
  /// A new folder .NAME.partial-… beside `folder`, whose name is NAME, with a file in it that marks
  /// it as this class's. Those that killed processes left there are removed, by name and mark.
  /// Errors: kIo where the system refuses.
  static Result<PartialFolder> beside(const std::string& folder);
  PartialFolder(PartialFolder&& other) noexcept;
  PartialFolder& operator=(PartialFolder&&) = delete;
  /// Removes it with all that was written, unless it was renamed.
  ~PartialFolder();

  const std::string& path() const { return path_; }
  /// Over an empty folder, too. Errors: kIo.
  Status rename_to(const std::string& folder);

 private:
  PartialFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;  // a file descriptor, negative where there is none
};

}  // namespace moracle
