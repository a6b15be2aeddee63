def main():
    print("trains")
