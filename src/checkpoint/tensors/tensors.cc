#include "checkpoint/tensors/tensors.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Tensors Tensors::from(std::vector<TensorFile> files, std::map<std::string, Entry> entries,
                      StoredName stored_name) {
  Tensors tensors;
  tensors.files_ = std::move(files);
  tensors.entries_ = std::move(entries);
  tensors.stored_name_ = std::move(stored_name);
  tensors.index_.reserve(tensors.entries_.size());
  for (const auto& [name, entry] : tensors.entries_) tensors.index_.emplace(name, &entry);
  return tensors;
}

Result<Tensors> Tensors::from(std::vector<TensorFile> files) {
  std::map<std::string, Entry> entries;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const auto& [name, stored] : files[i].tensors()) {
      const auto [it, is_new] = entries.try_emplace(name, Entry{stored.view, i});
      if (!is_new) {
        return Error{ErrorKind::kBadFile, files[i].path(), "tensor '" + name + "'",
                     "to be in one shard only", "it is also in " + files[it->second.file].path()};
      }
    }
  }
  return from(std::move(files), std::move(entries), nullptr);
}

namespace {

// A name with * for each part that is a number: names of all layers and experts are alike. Numbers
// go to `numbers`.
std::string without_numbers(std::string_view name, std::vector<std::string>& numbers) {
  std::string text;
  for (;;) {
    const size_t dot = name.find('.');
    const std::string part(name.substr(0, dot));
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (number) numbers.push_back(part);
    text += number ? "*" : part;
    if (dot == name.npos) return text;
    text += '.';
    name.remove_prefix(dot + 1);
  }
}

std::string with_numbers(std::string text, const std::vector<std::string>& numbers) {
  size_t at = 0;
  for (const std::string& number : numbers) {
    at = text.find('*', at);
    if (at == text.npos) return text;
    text.replace(at, 1, number);
  }
  return text;
}

}  // namespace

Result<Tensors> Tensors::renamed(Tensors&& tensors, std::string (*name)(std::string_view stored)) {
  std::map<std::string, Entry> entries;
  std::map<std::string, std::string> alike;  // stored names by own ones, both without numbers
  for (auto& [stored, entry] : tensors.entries_) {
    const std::string own = name(stored);
    Entry moved = std::move(entry);
    if (own != stored) {
      moved.stored = stored;
      std::vector<std::string> numbers;
      alike.try_emplace(without_numbers(own, numbers), without_numbers(stored, numbers));
    }
    const std::string& path = tensors.files_[moved.file].path();
    const auto [it, is_new] = entries.try_emplace(own, std::move(moved));
    if (!is_new) {
      const std::string& other = it->second.stored.empty() ? own : it->second.stored;
      return Error{ErrorKind::kBadFile, path, "tensor '" + stored + "'",
                   "to be there under one name", "the files have it as " + other + ", too"};
    }
  }
  // Name an absent tensor as the files name that of another layer or expert.
  const auto stored_name = [alike = std::move(alike)](const std::string& own) {
    std::vector<std::string> numbers;
    const auto found = alike.find(without_numbers(own, numbers));
    return found == alike.end() ? std::string() : with_numbers(found->second, numbers);
  };
  Tensors other = from(std::move(tensors.files_), std::move(entries), stored_name);
  other.folder_ = std::move(tensors.folder_);
  other.record_ = std::move(tensors.record_);
  return other;
}

const TensorView* Tensors::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &it->second->view;
}

const std::string& Tensors::file_of(const std::string& name) const {
  const auto it = index_.find(name);
  if (it != index_.end()) return files_[it->second->file].path();
  return files_.size() == 1 ? files_[0].path() : folder_;
}

std::string Tensors::shown(const std::string& name) const {
  const auto it = index_.find(name);
  const std::string stored = it != index_.end() ? it->second->stored
                             : stored_name_     ? stored_name_(name)
                                                : std::string();
  return stored.empty() || stored == name ? name : str(stored, " (", name, ")");
}

Error Tensors::wrong(const std::string& name, std::string need, std::string fact) const {
  return {ErrorKind::kBadFile, file_of(name), "tensor '" + shown(name) + "'", std::move(need),
          std::move(fact)};
}

Result<TensorView> Tensors::get(const std::string& name) const {
  const TensorView* view = find(name);
  if (view == nullptr) return wrong(name, "to be in the file", "it is missing");
  return *view;
}

Result<TensorView> Tensors::get(const std::string& name, DType dtype,
                                std::vector<int64_t> shape) const {
  MORACLE_TRY(TensorView view, get(name));
  const TensorView wanted{nullptr, dtype, std::move(shape)};
  if (view.dtype != dtype || view.shape != wanted.shape) {
    return wrong(name, to_string(wanted), "it is " + to_string(view));
  }
  return view;
}

}  // namespace moracle
