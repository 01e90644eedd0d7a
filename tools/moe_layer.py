"""Computes one MoE layer of a full checkpoint in double, from tensors that the producers' libraries read."""
import ast
import json

import torch
from safetensors.torch import load_file

import producers

# ---- quantization of activations, per token or group: (x in double, group) -> the quantized values ----


def int8_token(x, _):
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-10).float() / 127
    return torch.round(x.float() / scale).clamp(-128, 127).double() * scale.double()


def fp8_group(x, group):
    groups = x.float().reshape(len(x), -1, group or x.shape[1])
    scale = groups.abs().amax(2, keepdim=True).clamp(min=1e-10) / 448
    codes = (groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.double() * scale.double()).reshape(x.shape)


def mxfp8(x, group):
    groups = x.float().reshape(len(x), -1, group)
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(2, keepdim=True) / 448)).clamp(min=-127))
    return ((groups / scale).to(torch.float8_e4m3fn).double() * scale.double()).reshape(x.shape)


ACTIVATIONS = {"int8_token": int8_token, "fp8_token": fp8_group, "fp8_group": fp8_group, "mxfp8": mxfp8}


# ---- one MoE block in double ----


class Layer:
    def __init__(self, folder):
        files = sorted(folder.glob("model*.safetensors"))
        self.name = folder.name
        self.tensors = {name: t for path in files for name, t in load_file(path).items()}
        self.sharded = len(files) > 1
        self.config = json.loads((folder / "config.json").read_text())
        self.reference = load_file(folder / "reference.safetensors")
        facts = json.loads((folder / "reference.json").read_text())
        self.mlp = f"model.layers.{facts['moe_layer']}.mlp"
        self.router = self.mlp + (".router" if self.config["model_type"] == "gpt_oss" else ".gate")
        self.scheme = ast.literal_eval(facts["act"]["scheme"][0]) if "act" in facts else None

    def quantize(self, x):
        return ACTIVATIONS[self.scheme[0]](x, self.scheme[1]) if self.scheme else x

    def matrices(self, e):
        """Expert e's w13 [2I, H] and w2 [H, I] in float32, and their biases."""
        quantization, prefix = self.config.get("quantization_config"), self.mlp + ".experts"
        if self.config["model_type"] != "gpt_oss":
            read = producers.weights(quantization)
            gate, up, down = (read(self.tensors, f"{prefix}.{e}.{part}_proj") for part in ("gate", "up", "down"))
            return torch.cat([gate, up]), down, 0, 0
        read = producers.experts(quantization)
        w13, w2 = (read(self.tensors, f"{prefix}.{part}_proj")[e].T for part in ("gate_up", "down"))
        b13, b2 = (self.tensors[f"{prefix}.{part}_proj_bias"][e].double() for part in ("gate_up", "down"))
        return torch.cat([w13[0::2], w13[1::2]]), w2, torch.cat([b13[0::2], b13[1::2]]), b2

    def logits(self, x, experts):
        logits = x @ self.tensors[self.router + ".weight"][:experts].double().T
        bias = self.tensors.get(self.router + ".bias")
        return logits if bias is None else logits + bias[:experts].double()

    def route(self, logits, top_k, groups, top_groups):
        if self.config["model_type"] == "gpt_oss":
            top = torch.sort(logits, dim=1, descending=True, stable=True)
            return top.indices[:, :top_k], torch.softmax(top.values[:, :top_k], 1)
        if self.config["model_type"] == "deepseek_v3":
            scores = torch.sigmoid(logits)
            choice = scores + self.tensors[self.router + ".e_score_correction_bias"][:logits.shape[1]].double()
            members = choice.unflatten(1, (groups, -1))
            best = members.topk(2, 2).values.sum(2).topk(top_groups, 1).indices
            allowed = torch.zeros(len(logits), groups).scatter(1, best, 1).bool()
            choice = members.masked_fill(~allowed[:, :, None], -torch.inf).flatten(1)
        else:
            scores = choice = torch.softmax(logits, 1)
        ids = choice.topk(top_k, 1).indices
        weights = scores.gather(1, ids)
        weights, order = (weights / weights.sum(1, keepdim=True)).sort(1, descending=True)
        return ids.gather(1, order), weights * self.config.get("routed_scaling_factor", 1)

    def activate(self, gate, up):
        if self.config["model_type"] == "gpt_oss":
            gate, up = gate.clamp(max=7), up.clamp(-7, 7)
            return gate * torch.sigmoid(1.702 * gate) * (up + 1)
        return gate * torch.sigmoid(gate) * up

    def run(self, x, ids, weights):
        output = torch.zeros_like(x)
        for e in ids.unique().tolist():
            w13, w2, b13, b2 = self.matrices(e)
            tokens, slots = torch.nonzero(ids == e, as_tuple=True)
            gate, up = (self.quantize(x[tokens]) @ w13.double().T + b13).chunk(2, 1)
            y = self.quantize(self.activate(gate, up)) @ w2.double().T + b2
            output.index_add_(0, tokens, y * weights[tokens, slots, None])
        return output
