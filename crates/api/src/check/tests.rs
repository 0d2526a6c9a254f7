#[test]
fn print() {
    println!("{}", serde_json::to_string_pretty(&crate::crds()).unwrap());
}
