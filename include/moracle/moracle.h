// The table of contents: everything a user of the library needs.
#pragma once

#include "moracle/base.h"        // Result, Error, DType, views
#include "moracle/checkpoint.h"  // Checkpoint, DescribedWeights; quantize: to another folder
#include "moracle/device.h"      // Device: memory and an ordered queue
#include "moracle/model.h"       // Model: a whole model
#include "moracle/moe.h"         // FusedMoe: prepare, experts, finalize; tune
#include "moracle/oracle.h"      // Machine, Request, Backend, select: who serves a layer, and why
#include "moracle/quant.h"       // QuantKey, Scheme: what the numbers mean
#include "moracle/text.h"        // Tokenizer, ChatTemplate
