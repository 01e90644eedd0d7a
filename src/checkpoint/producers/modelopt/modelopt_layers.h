// Names of modules in ModelOpt's configs: which algorithm each has, and which are excluded.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace moracle {

/// Names may be shell patterns. A config may write another prefix before the language model's
/// modules than the file: "model." for "model.language_model.".
class ModelOptLayers {
 public:
  /// `algorithms`: quantized_layers. `excluded`: ignore or exclude_modules.
  ModelOptLayers(std::map<std::string, std::string> algorithms,
                 const std::vector<std::string>& excluded);

  /// The algorithm of the entry that names the module or, if there is none, the nearest module
  /// around it. nullptr: no entry does.
  const std::string* algorithm_of(const std::string& module) const;
  /// True if a name is a part between dots of the module's name, or a pattern matches the module.
  bool excludes(const std::string& module) const;

 private:
  std::map<std::string, std::string> names_;
  std::vector<std::pair<std::string, std::string>> patterns_;  // with their algorithm
  // A loop over all names would be slow: published configs exclude 500 names and have 60,000
  // modules.
  class Names {
   public:
    void add(std::string name);
    bool contains(std::string_view name) const;
    const std::set<size_t>& lengths() const { return lengths_; }

   private:
    struct Hash : std::hash<std::string_view> {
      using is_transparent = void;
    };
    std::unordered_set<std::string, Hash, std::equal_to<>> names_;
    std::set<size_t> lengths_;
  };
  Names excluded_names_;               // parts between dots
  Names excluded_prefixes_;            // patterns whose only * is at the end
  std::vector<std::string> excluded_;  // other patterns
};

}  // namespace moracle
