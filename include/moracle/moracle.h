// Includes the whole public API.
#pragma once

#include "moracle/base.h"        // Result, Error, DType, views
#include "moracle/checkpoint.h"  // Checkpoint, DescribedWeights, quantize to a new folder
#include "moracle/device.h"      // Device: memory and an ordered queue
#include "moracle/gguf.h"        // write_gguf: a checkpoint as a GGUF file
#include "moracle/layer.h"       // LayerSpec, Activation, Routing: shapes and functions
#include "moracle/model.h"       // Model: load, forward, generate
#include "moracle/moe.h"         // FusedMoe: prepare, experts, finalize; tune
#include "moracle/oracle.h"      // Machine, Request, Backend, select: backend choice
#include "moracle/parallel.h"    // Group, Exchange: ranks that hold one model together
#include "moracle/placement.h"   // PlacedMoe: experts in host memory, and in slots of a GPU
#include "moracle/quant.h"       // QuantKey, Scheme: number formats
#include "moracle/routing.h"     // RoutingStatistics: measured load of experts, placement by it
#include "moracle/serve.h"       // ModelServer: a model behind HTTP
#include "moracle/text.h"        // Tokenizer, ChatTemplate
#include "moracle/version.h"     // MORACLE_VERSION_MAJOR, _MINOR, _PATCH
