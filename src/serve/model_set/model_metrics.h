// Metrics of several models in one text: each sample gets the label "model".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moracle::serve {

class ModelMetrics {
 public:
  /// Adds the text of Metrics::text() of a model.
  void add(const std::string& model, std::string_view text);
  std::string text() const;

 private:
  struct Family {
    std::string name, head, samples;  // head: the lines HELP and TYPE
  };
  Family& family(std::string_view name);

  std::vector<Family> families_;  // in order of their first sample
};

}  // namespace moracle::serve
