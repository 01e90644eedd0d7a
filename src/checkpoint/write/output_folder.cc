#include "checkpoint/write/output_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/small_file.h"
#include "base/try.h"

namespace moracle {

namespace fs = std::filesystem;

namespace {

Error refused(const fs::path& path, const char* need, const std::error_code& why) {
  return {ErrorKind::kIo, path.string(), "", need, why.message()};
}
Error misplaced(const std::string& folder, const char* need, std::string fact) {
  return {ErrorKind::kInvalidArgument, folder, "", need, std::move(fact)};
}

// True for weights in any form and for files that describe the source, not the model.
bool stays_behind(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kEndings[] = {".safetensors", ".safetensors.index.json",
                                           ".bin",         ".bin.index.json",
                                           ".pt",          ".pth",
                                           ".ckpt",        ".gguf",
                                           ".h5",          ".msgpack",
                                           ".onnx",        ".onnx_data",
                                           ".npz"};
  const bool weights = std::any_of(std::begin(kEndings), std::end(kEndings),
                                   [&](std::string_view ending) { return name.ends_with(ending); });
  return weights || name.starts_with('.') || name.starts_with("README") ||
         name == "reference.json" || name == "config.json";
}

// Follows links to files, as in a download cache, but not to folders, because they may form a loop.
Status copy_folder(const fs::path& from, const fs::path& to) {
  std::error_code why;
  for (fs::directory_iterator it(from, why), end; !why && it != end; it.increment(why)) {
    const fs::path path = it->path();
    if (stays_behind(path)) continue;
    std::error_code gone;
    if (fs::is_regular_file(path, gone)) {
      if (!fs::copy_file(path, to / path.filename(), gone))
        return refused(path, "to be copied", gone);
    } else if (fs::is_directory(path, gone) && !fs::is_symlink(path, gone)) {
      if (!fs::create_directory(to / path.filename(), gone))
        return refused(to / path.filename(), "a new folder", gone);
      MORACLE_CHECK(copy_folder(path, to / path.filename()));
    }
  }
  if (why) return refused(from, "a readable folder", why);
  return {};
}

}  // namespace

namespace {

// True if another file system is mounted on the folder. A rename cannot replace such a folder.
bool is_mounted_on(const fs::path& folder) {
  struct stat own {
  }, above{};
  return ::stat(folder.c_str(), &own) == 0 && ::stat(folder.parent_path().c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

Status check_replaceable(const fs::path& path, const std::string& folder) {
  std::error_code why;
  // The caller resolved all valid links, so a remaining link is broken.
  if (fs::is_symlink(fs::symlink_status(path, why)))
    return misplaced(folder, "a new or empty folder", "it is a broken link");
  if (!fs::exists(path, why)) return {};
  if (!fs::is_directory(path, why))
    return misplaced(folder, "a new or empty folder", "it is a file");
  const bool empty = fs::is_empty(path, why);
  if (why) return refused(path, "a readable folder", why);
  if (!empty)
    return misplaced(folder, "a new or empty folder",
                     "it has files, which quantize does not overwrite");
  if (is_mounted_on(path)) {
    return misplaced(folder, "a folder that can be replaced, such as a new folder inside it",
                     "another file system is mounted on it");
  }
  return {};
}

}  // namespace

Result<OutputFolder> OutputFolder::create(const std::string& folder, const std::string& source) {
  std::error_code why;
  // The path of an existing folder may end with a slash or be a link.
  fs::path path = fs::weakly_canonical(fs::absolute(folder, why), why);
  if (folder.empty() || why)
    return misplaced(folder, "a folder name", "the name is empty or invalid");
  if (!path.has_filename()) path = path.parent_path();
  const fs::path inside = fs::weakly_canonical(source, why);
  const auto [left, rest] = std::mismatch(inside.begin(), inside.end(), path.begin(), path.end());
  if (left == inside.end())
    return misplaced(folder, "a folder outside of the checkpoint's folder", "it is inside");
  MORACLE_CHECK(check_replaceable(path, folder));
  if (!fs::is_directory(path.parent_path(), why))
    return misplaced(folder, "an existing parent folder",
                     path.parent_path().string() + " does not exist");
  MORACLE_TRY(PartialFolder partial, PartialFolder::beside(path.string()));
  return OutputFolder(std::move(partial), path.string());
}

Status OutputFolder::write(const std::string& name, const std::string& content) {
  return write_new_file(partial_.path() + "/" + name, content);
}

Status OutputFolder::copy_rest(const std::string& source) {
  return copy_folder(source, path());
}

Status OutputFolder::keep() {
  return partial_.rename_to(folder_);
}

}  // namespace moracle
