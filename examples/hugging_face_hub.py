"""Share a model through the Hugging Face Hub: save_pretrained, from_pretrained, push_to_hub.

The mixin keeps the constructor's arguments as config.json and the weights as safetensors. Here
both go through a local folder; `model.push_to_hub("you/name")` sends the same files.
"""

import torch
from huggingface_hub import PyTorchModelHubMixin

import difformer


class HubDIFFormer(difformer.DIFFormer, PyTorchModelHubMixin, library_name="difformer"):
    """DIFFormer with save_pretrained, from_pretrained and push_to_hub."""


model = HubDIFFormer(64, 32, 10, num_layers=2, kernel="simple").eval()
model.save_pretrained("shared")
again = HubDIFFormer.from_pretrained("shared").eval()

x = torch.randn(50, 64)
assert torch.equal(model(x), again(x))
assert again.config == model.config
print("the model from the folder gives the same bits")
