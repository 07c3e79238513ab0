module caesar_cipher (
    input  wire [7:0] input_char,
    input  wire [3:0] key,
    output reg  [7:0] output_char
);
    reg [7:0] first, place;

    always @* begin
        first = input_char[5] ? "a" : "A";
        place = input_char - first;
        output_char = input_char;
        if (input_char >= first && place < 26) output_char = first + (place + key) % 26;
    end
endmodule
