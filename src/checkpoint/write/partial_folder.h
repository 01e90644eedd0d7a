// A hidden folder to write into. It is removed with its owner, also if the process is killed.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle {

class PartialFolder {
 public:
  /// Creates a folder .NAME.partial-… beside `folder`, whose name is NAME, and a marker file in it.
  /// Removes folders that killed processes left there, identified by name and marker. Errors: kIo
  /// if the system refuses.
  static Result<PartialFolder> beside(const std::string& folder);
  PartialFolder(PartialFolder&& other) noexcept;
  PartialFolder& operator=(PartialFolder&&) = delete;
  /// Removes the folder with its content, unless it was renamed.
  ~PartialFolder();

  const std::string& path() const { return path_; }
  /// Also replaces an empty folder. Errors: kIo.
  Status rename_to(const std::string& folder);

 private:
  PartialFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;  // file descriptor; negative if there is none
};

}  // namespace moracle
