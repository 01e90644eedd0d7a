// Definitions of the opaque handles of moracle/c.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moracle/c.h"
#include "moracle/moe.h"

struct moracle_checkpoint {
  moracle::Checkpoint value;
  std::vector<int64_t> moe_layers;
};

struct moracle_layer {
  explicit moracle_layer(moracle::DescribedWeights described)
      : weights(std::move(described)),
        spec(weights->spec),
        scheme(name(spec.scheme)),
        text(describe(spec)) {}

  std::optional<moracle::DescribedWeights> weights;  ///< empty: consumed by a moracle_moe
  moracle::LayerSpec spec;
  std::string scheme, text;
};

struct moracle_machine {
  moracle::Machine value;
};

struct moracle_selection {
  moracle::Selection value;
  std::string backend;  ///< empty: no backend serves the request
};

struct moracle_device {
  std::shared_ptr<moracle::Device> value;
  std::shared_ptr<moracle::Workspace> workspace;  ///< shared by all layers on this device handle
  std::string name;
};

struct moracle_buffer {
  moracle::Buffer value;
};

struct moracle_moe {
  moracle::FusedMoe value;
};
