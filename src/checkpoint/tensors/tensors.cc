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
